//! The PCnet family: Am79C970A and Am79C973.
