//! The QEMU that is installed.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program, and its version.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// Where it is.
    pub program: PathBuf,
    /// Which it is.
    pub version: Version,
}

/// Major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

/// QEMU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// It is not installed.
    #[error(
        "QEMU is missing ({program} is not on the path); as root: apt-get install --no-install-recommends qemu-system-x86"
    )]
    Missing {
        /// The program that was looked for.
        program: String,
    },
    /// It does not say what it is.
    #[error("{} --version says nothing that is understood; name another program by --qemu", .0.display())]
    Version(PathBuf),
    /// It is too old.
    #[error("QEMU {}.{} is too old: 7.2 or later is needed", .0.0, .0.1)]
    Old(Version),
}

/// The oldest that has `-netdev stream`.
const OLDEST: Version = Version(7, 2);

impl Qemu {
    /// The oldest that would do, of this name.
    #[must_use]
    pub fn oldest(program: String) -> Self {
        Self { program: program.into(), version: OLDEST }
    }

    /// Finds the program of that name, or QEMU for this machine's architecture, on the path.
    ///
    /// # Errors
    /// If it is not there, or too old.
    pub fn find(named: Option<&Path>) -> Result<Self, QemuError> {
        let usual = PathBuf::from(format!("qemu-system-{}", std::env::consts::ARCH));
        let program = named.map_or(usual, Path::to_owned);
        let mut command = Command::new(&program);
        let said = command.arg("--version").stdin(Stdio::null()).output();
        let said =
            said.map_err(|_| QemuError::Missing { program: program.display().to_string() })?;
        let version = version(&String::from_utf8_lossy(&said.stdout));
        let version = version.ok_or_else(|| QemuError::Version(program.clone()))?;
        if version < OLDEST {
            return Err(QemuError::Old(version));
        }
        Ok(Self { program, version })
    }
}

/// Of `QEMU emulator version 7.2.22 (Debian ...)`.
fn version(text: &str) -> Option<Version> {
    let numbers = text.split_once("version ")?.1;
    let mut numbers = numbers.split(['.', ' ', '\n']);
    Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A command line as a shell reads it.
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
        assert!(Version(10, 0) > Version(9, 2) && Version(7, 1) < OLDEST);
    }

    #[test]
    fn a_printed_command_line_can_be_pasted() {
        let words = ["qemu", "-append", "a b's", "", "mac=02:00,x=/y"].map(OsStr::new);
        assert_eq!(quoted(words), r"qemu -append 'a b'\''s' '' mac=02:00,x=/y");
    }
}
