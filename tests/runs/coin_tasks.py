"""Two tasks that a model of any size gets right about two times of three, and one of three."""

from peergrad.debate.question import Question
from peergrad.tasks.base import Grade


class Easy:
    name, known, count = "easy", True, 40

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return Question(f"q{index}", f"What is {index} + {index % 7}?", answer="any")

    def grade(self, question, solution):
        assert question.id.startswith("q")  # its own, whatever else is in the run
        return Grade(correct=self.right(solution), answer=str(len(solution) % 3))

    @staticmethod
    def right(solution):
        return len(solution) % 3 > 0


class Hard(Easy):
    name, count = "hard", 20

    @staticmethod
    def right(solution):
        return len(solution) % 3 == 0
