"""What APIs write in their requests and answers, as turns in OpenAI's form; also what programs log of it."""
