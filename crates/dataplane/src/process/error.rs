//! The reason why a data process ended.

/// The reason why a data process ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The state memory cannot be used.
    #[error("The state memory of the switch cannot be used")]
    State(#[from] shmem::RegionError),
    /// The configuration cannot be used.
    #[error("The configuration of the switch cannot be used: {0}")]
    Config(&'static str),
    /// The process cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] crate::sandbox::SandboxError),
    /// The operating system refused something.
    #[error("Cannot {what}")]
    System {
        /// The call that was tried.
        what: &'static str,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

/// Adds to an error of the kernel what was tried.
pub(super) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> ProcessError {
    move |errno| ProcessError::System { what, source: errno.into() }
}
