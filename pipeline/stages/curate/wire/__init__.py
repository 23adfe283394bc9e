"""Requests and answers of APIs as turns in OpenAI's form, also as programs log them."""
