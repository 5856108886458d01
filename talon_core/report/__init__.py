"""`talon bench report`: what a run found, as one page and as pictures.

`figures` is the data of every figure, and nothing else is drawn. `gather` makes it of a folder: `shapes`, `timing` and
`efficiency` count rounds, `steps` keeps those of a few prompts, `progress` knows whether the run is over. Two renderers
read it: `page` writes HTML, of `sections` with `svg_figures` and `svg_lanes` in them, and `plots` lets matplotlib draw;
`colours` is what both paint with.
"""
