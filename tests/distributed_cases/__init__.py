"""What is tested on several ranks: functions that every rank runs, each marked with ``@distributed_case``.

Any module here is found by itself. A case runs in a process group that is already there, makes its Trainer with
``ddp_trainer`` and asserts on every rank; ``on_every_rank`` brings the ranks' values together.
"""
