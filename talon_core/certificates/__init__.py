"""What stands behind the word "lossless": proof, a certificate that belongs to some code, or a plugin's claim.

`code` says what code is, `subject` what a certificate is about, `store` where it is kept, and `standing` what follows
for a policy and a rule. `talon_core.certify` makes certificates.
"""
