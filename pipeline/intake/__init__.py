"""Any file as rows of chats: what the file is (`files`), what its rows mean (`rows`), which program wrote it
(`exports`), and the forms of APIs (`wire`).
"""
