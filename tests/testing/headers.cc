// No code: a target must have a source to carry the precompiled headers of the tests.
