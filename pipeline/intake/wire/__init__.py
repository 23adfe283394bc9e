"""Conversion of API requests and answers, also as programs log them, to turns in OpenAI's form."""
