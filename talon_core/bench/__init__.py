"""Measuring methods against each other on prompt sets: `talon bench`.

`methods` and `prompts` read what is compared and on what, `schedule` puts it in order, `engines` measures, `results`
keeps a folder that can be resumed, `environment` says where it ran, and `compare` and `tables` tell what came out.
"""
