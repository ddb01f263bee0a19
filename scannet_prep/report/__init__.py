"""A page about the scenes of a place, and the comparison of two places.

scenes        open the place; read or process each scene
measures      measure a scene
figures       combine the measures of all scenes
page          the page, with pictures of a few scenes
comparison    two places of the same kind, and their differences
    processed_side, raw_side    one of the two places: its scenes, or a record of them
    facts                       the texts that are compared
    changes                     the differences in words
"""
