"""Measuring methods against each other on prompt sets: `talon bench`.

`methods` and `prompts` read what is compared and on what, `schedule` puts it in order, `engines` measures, `results`
and `rounds` keep a folder that can be resumed, and `environment` says where it ran. `compare` tells what came out,
`between` of several runs, and `advice` what follows; `tables`, `sheets` and `forms` write it down.
"""
