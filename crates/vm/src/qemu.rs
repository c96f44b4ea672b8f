//! The QEMU that is installed, or that `cargo xtask setup` built.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program, and its version.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// The path of the program.
    pub program: PathBuf,
    /// The version of the program.
    pub version: Version,
}

/// Major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

/// The environment variable that names the program to use.
pub const VARIABLE: &str = "TOKLAT_QEMU";

/// QEMU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// QEMU is not installed.
    #[error(
        "QEMU is missing ({program} is not on the path); as root: apt-get install --no-install-recommends qemu-system-x86"
    )]
    Missing {
        /// The program that was tried.
        program: String,
    },
    /// The program printed no version of QEMU.
    #[error("{} --version says nothing that is understood; name another program by --qemu", .0.display())]
    Version(PathBuf),
    /// QEMU is too old.
    #[error(
        "QEMU {}.{} is too old: {}.{} or later is needed; cargo xtask qemu makes one in target/qemu, and --qemu or ${VARIABLE} \
         names any other", .found.0, .found.1, .least.0, .least.1
    )]
    Old {
        /// The version that was found.
        found: Version,
        /// The oldest version that suffices.
        least: Version,
    },
}

impl Version {
    /// The oldest version that has `-netdev stream`.
    pub const OLDEST: Self = Self(7, 2);
    /// The oldest version whose guests get one interrupt for each queue that another process
    /// serves, even without KVM to route it.
    pub const VECTORS: Self = Self(10, 0);
    /// The oldest version that has `-device vfio-user-pci`.
    pub const VFIO_USER: Self = Self(10, 1);
}

impl Qemu {
    /// Finds a QEMU for everything but vfio-user: [`Self::at_least`] with the oldest version.
    ///
    /// # Errors
    /// The errors of [`Self::at_least`].
    pub fn find(named: Option<&Path>) -> Result<Self, QemuError> {
        Self::at_least(named, Version::OLDEST)
    }

    /// Finds the QEMU for guests of our own: one with [`Version::VECTORS`] if there is one, else as
    /// [`Self::find`].
    ///
    /// # Errors
    /// If there is none.
    pub fn for_test_guests() -> Result<Self, QemuError> {
        Self::at_least(None, Version::VECTORS).or_else(|_| Self::find(None))
    }

    /// Finds a QEMU of that version or a later one: the program that is `named`, here or by
    /// `$TOKLAT_QEMU`; else that for this machine's architecture on the path; else, if it is
    /// missing there or too old, the one that `cargo xtask setup` made, `qemu` in the build
    /// directory that this program is in, or `target/qemu` here.
    ///
    /// # Errors
    /// If there is none, or what is named is too old.
    pub fn at_least(named: Option<&Path>, least: Version) -> Result<Self, QemuError> {
        let variable = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        if let Some(program) = named.map(Path::to_owned).or_else(|| variable.map(Into::into)) {
            return Self::new_enough(program, least);
        }
        let usual = format!("qemu-system-{}", std::env::consts::ARCH);
        Self::new_enough(usual.clone().into(), least).or_else(|error| {
            let mut made = super::made_by_setup("qemu").map(|dir| dir.join(&usual));
            let made = made.find(|program| program.is_file()).ok_or(error)?;
            Self::new_enough(made, least)
        })
    }

    fn new_enough(program: PathBuf, least: Version) -> Result<Self, QemuError> {
        let mut command = Command::new(&program);
        let said = command.arg("--version").stdin(Stdio::null()).output();
        let said =
            said.map_err(|_| QemuError::Missing { program: program.display().to_string() })?;
        let found = version(&String::from_utf8_lossy(&said.stdout));
        let found = found.ok_or_else(|| QemuError::Version(program.clone()))?;
        if found < least {
            return Err(QemuError::Old { found, least });
        }
        Ok(Self { program, version: found })
    }
}

/// Parses `QEMU emulator version 7.2.22 (Debian ...)`.
fn version(text: &str) -> Option<Version> {
    let numbers = text.split_once("version ")?.1;
    let mut numbers = numbers.split(['.', ' ', '\n']);
    Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Formats a command line so that a shell can read it.
#[must_use]
pub fn quoted<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    let words: Vec<String> = words.into_iter().map(word).collect();
    words.join(" ")
}

fn word(word: &OsStr) -> String {
    let text = OsString::from(word).to_string_lossy().into_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        assert_eq!(version("QEMU emulator version 7.2.22 (Debian 1:7.2)\n"), Some(Version(7, 2)));
        assert_eq!(version("QEMU emulator version 10.0.2\n"), Some(Version(10, 0)));
        assert_eq!(version("something else"), None);
        assert!(Version(10, 0) > Version(9, 2) && Version(7, 1) < Version::OLDEST);
    }

    #[test]
    fn a_program_that_is_too_old_is_refused_with_what_helps() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("qemu");
        std::fs::write(&program, "#!/bin/sh\necho QEMU emulator version 9.2.1\n").unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, executable).unwrap();
        let found = Qemu::find(Some(&program)).unwrap();
        assert_eq!(found.version, Version(9, 2));
        let error = Qemu::at_least(Some(&program), Version::VFIO_USER).unwrap_err().to_string();
        assert!(error.contains("9.2") && error.contains("cargo xtask qemu"), "{error}");
        assert!(matches!(
            Qemu::find(Some(&dir.path().join("none"))),
            Err(QemuError::Missing { .. })
        ));
    }

    #[test]
    fn a_printed_command_line_can_be_pasted() {
        let words = ["qemu", "-append", "a b's", "", "mac=02:00,x=/y"].map(OsStr::new);
        assert_eq!(quoted(words), r"qemu -append 'a b'\''s' '' mac=02:00,x=/y");
    }
}
