"""cresnet._inspect: the parts of cresnet.audit() and Run.errors(). They need the extra cresnet[audit]."""
