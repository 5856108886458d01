"""What stands behind the word "lossless": proof, a certificate that belongs to some code, or a plugin's claim.

`subject` says what a certificate is about, `store` where certificates are kept, and `standing` what follows for a
policy and a rule. Certificates are made by `talon_core.testing.certify`.
"""
