"""All client packages in one process and against one server: importing them takes longer than most of what they ask."""

import harness

if __name__ == "__main__":
    harness.parse_arguments()
    harness.enter_venv("requirements.txt")

# Found by harness.main.
from agents_test import OpenAiAgents, PydanticAi
from anthropic_test import Anthropic
from openai_test import OpenAi

if __name__ == "__main__":
    harness.main(globals())
