"""How ranks come into being. Nothing is imported here: `laconic.launching.local` needs no torch to start ranks.

local.py        starts ranks on this machine
template.py     how a process is loaded that ranks begin as copies of
function.py     runs a Python function on ranks of this machine, for scripts and notebooks
worker.py       one rank of that, as a process
values.py       arguments and results between processes, without pickle
last_words.py   what ranks say before they fail, told once
environment.py  which rank this process is, by torchrun's or SLURM's variables
join.py         brings the ranks together
agreement.py    finds out whether they were started with the same settings, data and code
"""
