"""Words of verdicts on rows, a table per language.

Words are written without accents, as `verdicts.plain_words` reads them, and with both spellings of a German
umlaut. Beside English, words that often mean something else are left out, so that content is no verdict:
words for cancelled (an order), flagged and withdrawn (reported, collected), for a thing's condition, a
court's judgment and false (a claim), and `refuse`, which in English is what a model should do.
"""

from typing import NamedTuple


def words_of(*lines: str) -> frozenset[str]:
    """Return the words of some lines."""
    return frozenset(word for line in lines for word in line.split())


class Words(NamedTuple):
    """The words of a language, or of several together."""

    bad: frozenset[str]
    good: frozenset[str]
    # Those of the bad and good words below which numbers and yes or no may count or answer something, unless
    # a verb precedes them.
    open: frozenset[str]
    states: frozenset[str]
    of_runs: frozenset[str]  # states of which what failed may be a run, and not the row
    reviews: frozenset[str]  # keys in words joined by `_`; results of something else are no verdicts
    negations: frozenset[str]
    verbs: frozenset[str]
    moments: frozenset[str]
    of_rows: frozenset[str]  # words of the row, its parts and its judges, beside the verbs
    yes: frozenset[str]
    no: frozenset[str]
    true: frozenset[str]  # as a spreadsheet writes it
    false: frozenset[str]
    nothing: frozenset[str]  # in the place of a time


ENGLISH = Words(
    bad=words_of(
        "bad cancel canceled cancelled delete deleted discard discarded drop dropped exclude excluded flag",
        "flagged incorrect invalid junk reject rejected remove removed retracted skip skipped spam trash",
        "trashed unusable withdrawn wrong",
    ),
    good=words_of(
        "accept accepted approval approve approved correct correctness good include keep kept ok passed",
        "usable use valid validity",
    ),
    open=words_of("accepted bad correct correctness flag good incorrect passed rejected use valid wrong"),
    states=words_of(
        "decision disposition judgement judgment moderation qa qc quality state status validation verdict"
    ),
    of_runs=words_of("state status"),
    reviews=words_of("review_outcome review_result"),
    negations=words_of("no non not never"),
    verbs=words_of("be been has is should to was"),
    moments=words_of("at by date on time"),
    of_rows=words_of(
        "all an annotation annotator answer answers by chat completion conversation do entry example final",
        "human item label message output prompt question record response result review reviewed reviewer row",
        "sample test tests the unit",
    ),
    yes=words_of("1 1.0 yes y"),
    no=words_of("0 0.0 no n"),
    true=words_of("true"),
    false=words_of("false"),
    nothing=words_of("false n/a na nan nat never no none null"),
)

# In these languages the adjective follows: `risposta_corretta` holds a text, as `correct_answer` does. So
# their words for answers, questions and the like are no words of the row.
ITALIAN = Words(
    bad=words_of(
        "cestinata cestinato eliminare eliminata eliminato errata errato esclusa escluso escludere",
        "inutilizzabile invalida invalido respinta respinto rifiutare rifiutata rifiutato rimossa rimosso",
        "rimuovere saltata saltato sbagliata sbagliato scartare scartata scartato scorretta scorretto",
    ),
    good=words_of(
        "accettata accettato approvata approvato corretta corretto utilizzabile valida valido validita"
    ),
    open=words_of(
        "accettata accettato corretta corretto errata errato sbagliata sbagliato scorretta scorretto valida",
        "valido",
    ),
    states=words_of("decisione moderazione qualita stato validazione verdetto"),
    of_runs=words_of("stato"),
    reviews=words_of("esito_revisione risultato_revisione"),
    negations=words_of("mai non"),
    verbs=words_of("e era"),
    moments=words_of("da il"),
    of_rows=words_of(
        "annotatore annotazione conversazione della di esempio finale messaggio revisione revisore riga",
        "umana umano",
    ),
    yes=words_of("si s"),
    no=words_of("no"),
    true=words_of("vero"),
    false=words_of("falso"),
    nothing=words_of("mai nessuno"),
)
SPANISH = Words(
    bad=words_of(
        "basura borrada borrado borrar descartada descartado descartar eliminada eliminado eliminar erronea",
        "erroneo excluida excluido excluir incorrecta incorrecto inservible invalida invalido omitida",
        "omitido rechazada rechazado rechazar",
    ),
    good=words_of("aceptada aceptado aprobada aprobado correcta correcto utilizable valida valido validez"),
    open=words_of(
        "aceptada aceptado correcta correcto erronea erroneo incorrecta incorrecto valida valido",
    ),
    states=words_of("calidad decision estado moderacion validacion veredicto"),
    of_runs=words_of("estado"),
    reviews=words_of("resultado_revision"),
    negations=words_of("no nunca"),
    verbs=words_of("es esta fue"),
    moments=words_of("el por"),
    of_rows=words_of(
        "anotacion anotador conversacion de del ejemplo fila final humana humano la mensaje revision revisor"
    ),
    yes=words_of("si s"),
    no=words_of("no"),
    true=words_of("verdadero"),
    false=words_of("falso"),
    nothing=words_of("nadie nunca"),
)
PORTUGUESE = Words(
    bad=words_of(
        "descartada descartado descartar eliminada eliminado eliminar errada errado excluida excluido",
        "excluir incorreta incorreto invalida invalido inutilizavel lixo recusada recusado rejeitada",
        "rejeitado rejeitar remover removida removido reprovada reprovado",
    ),
    good=words_of("aceita aceito aprovada aprovado correta correto utilizavel valida validade valido"),
    open=words_of(
        "aceita aceito correta correto errada errado incorreta incorreto valida valido",
    ),
    states=words_of("decisao estado moderacao qualidade situacao status validacao veredito"),
    of_runs=words_of("estado"),
    reviews=words_of("resultado_revisao"),
    negations=words_of("nao nunca"),
    verbs=words_of("e esta foi"),
    moments=words_of("em por"),
    of_rows=words_of(
        "anotacao anotador conversa da de do exemplo final humana humano linha mensagem revisao revisor"
    ),
    yes=words_of("sim s"),
    no=words_of("nao"),
    true=words_of("verdadeiro"),
    false=words_of("falso"),
    nothing=words_of("nao ninguem nunca"),
)
FRENCH = Words(
    bad=words_of(
        "ecarte ecartee ecarter erronee exclu exclue exclure incorrect incorrecte inutilisable invalide",
        "refusee rejete rejetee rejeter supprime supprimee supprimer",
    ),
    good=words_of("acceptee approuve approuvee correct correcte utilisable valable valide validee validite"),
    open=words_of("acceptee correcte erronee incorrecte valable valide validee"),
    states=words_of("decision etat moderation qualite statut validation verdict"),
    of_runs=words_of("etat statut"),
    reviews=words_of("resultat_relecture resultat_revision"),
    negations=words_of("jamais non pas"),
    verbs=words_of("a ete est etait"),
    moments=words_of("le par"),
    of_rows=words_of(
        "annotateur annotation conversation de du enregistrement exemple final finale humain la ligne",
        "message relecteur relecture revision",
    ),
    yes=words_of("oui o"),
    no=words_of("non"),
    true=words_of("vrai"),
    false=words_of("faux"),
    nothing=words_of("jamais non personne"),
)
GERMAN = Words(
    bad=words_of(
        "abgelehnt ablehnen aussortieren aussortiert ausgeschlossen entfernen entfernt geloescht geloscht",
        "inkorrekt loeschen loschen muell mull uebersprungen ubersprungen unbrauchbar ungueltig ungultig",
        "verwerfen verworfen zurueckgewiesen zuruckgewiesen",
    ),
    good=words_of("akzeptiert angenommen brauchbar freigegeben gueltig gultig korrekt richtig verwendbar"),
    open=words_of("akzeptiert angenommen gueltig gultig inkorrekt korrekt richtig"),
    states=words_of("entscheidung moderation pruefstatus prufstatus qualitaet qualitat status validierung"),
    of_runs=words_of("status"),
    reviews=words_of("pruefergebnis prufergebnis"),
    negations=words_of("kein nicht nie"),
    verbs=words_of("hat ist sein war wurde"),
    moments=words_of("am von"),
    of_rows=words_of(
        "annotation annotator antwort beispiel der die das datensatz eintrag frage gespraech gesprach",
        "nachricht pruefer prufer pruefung prufung zeile",
    ),
    yes=words_of("j ja"),
    no=words_of("nein"),
    true=words_of("wahr"),
    false=words_of("falsch"),
    nothing=words_of("nein nie niemand"),
)
DUTCH = Words(
    bad=words_of(
        "afgekeurd afgewezen afkeuren afwijzen geweigerd incorrect ongeldig onbruikbaar onjuist overgeslagen",
        "uitgesloten uitsluiten verwerpen verwijderd verwijderen verworpen weggegooid",
    ),
    good=words_of("bruikbaar correct geaccepteerd geldig goedgekeurd juist"),
    open=words_of("geaccepteerd geldig juist ongeldig onjuist"),
    states=words_of("beslissing besluit kwaliteit moderatie status validatie"),
    of_runs=words_of("status"),
    reviews=words_of("resultaat_beoordeling"),
    negations=words_of("geen niet nooit"),
    verbs=words_of("heeft is was werd"),
    moments=words_of("door op"),
    of_rows=words_of(
        "annotatie annotator antwoord beoordelaar beoordeling bericht de gesprek het rij van voorbeeld vraag"
    ),
    yes=words_of("j ja"),
    no=words_of("nee"),
    true=words_of("waar"),
    false=words_of("onwaar"),
    nothing=words_of("nee niemand nooit"),
)
POLISH = Words(
    bad=words_of(
        "bledna bledne bledny niepoprawna niepoprawne niepoprawny nieprawidlowa nieprawidlowe nieprawidlowy",
        "odrzuc odrzucic odrzucona odrzucone odrzucono odrzucony pominieta pominiete pominieto pominiety",
        "usun usunac usunieta usuniete usunieto usuniety wykluczona wykluczone wykluczono wykluczony",
    ),
    good=words_of(
        "poprawna poprawne poprawny prawidlowa prawidlowe prawidlowy zaakceptowana zaakceptowane",
        "zaakceptowany zatwierdzona zatwierdzone zatwierdzony",
    ),
    open=words_of(
        "bledna bledne bledny niepoprawna niepoprawne niepoprawny nieprawidlowa nieprawidlowe nieprawidlowy",
        "poprawna poprawne poprawny prawidlowa prawidlowe prawidlowy",
    ),
    states=words_of("decyzja jakosc moderacja ocena stan status walidacja weryfikacja"),
    of_runs=words_of("stan status"),
    reviews=words_of("wynik_weryfikacji"),
    negations=words_of("nie nigdy"),
    verbs=words_of("byl byla czy jest zostal zostala"),
    moments=words_of("dnia przez"),
    of_rows=words_of("adnotacja przyklad rozmowa weryfikator wiadomosc wiersz wpis"),
    yes=words_of("t tak"),
    no=words_of("nie"),
    true=words_of("prawda"),
    false=words_of("falsz"),
    nothing=words_of("brak nie nigdy nikt"),
)
# Swedish, Norwegian and Danish share most of them.
NORDIC = Words(
    bad=words_of(
        "avslatt avvisad avvisat avvist borttagen borttaget felaktig felaktigt forkastad forkastat forkastet",
        "kassera kasserad kasserat kassert kasseret oanvandbar oanvandbart ogiltig ogiltigt raderad raderat",
        "skrappost slettet spam ubrukelig ugyldig ugyldigt uteslutet utesluten",
    ),
    good=words_of(
        "accepterad accepterat akseptert anvandbar brukbar giltig giltigt godkand godkant godkendt godkjent",
        "gyldig gyldigt korrekt riktig riktigt rigtig",
    ),
    open=words_of("felaktig felaktigt giltig giltigt gyldig korrekt riktig riktigt rigtig ugyldig"),
    states=words_of("beslut beslutning granskningsstatus kvalitet moderering status validering vurdering"),
    of_runs=words_of("status"),
    reviews=words_of("granskningsresultat"),
    negations=words_of("aldrig aldri ej icke ikke inte"),
    verbs=words_of("ar blev er har var"),
    moments=words_of("av den"),
    of_rows=words_of(
        "annotering exempel eksempel fraga granskare meddelande melding rad samtal samtale svar"
    ),
    yes=words_of("j ja"),
    no=words_of("nej nei"),
    true=words_of("sann sant sand"),
    false=words_of("falsk falskt usann"),
    nothing=words_of("aldrig aldri ingen nej nei"),
)
LANGUAGES = (ENGLISH, ITALIAN, SPANISH, PORTUGUESE, FRENCH, GERMAN, DUTCH, POLISH, NORDIC)
# A row's key and its value may be of different languages.
ALL = Words(*(frozenset[str]().union(*lists) for lists in zip(*LANGUAGES, strict=True)))
