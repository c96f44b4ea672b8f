//! Files of this machine in the test guest.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the guest has them.
pub const PLACE: &str = "/host";

/// Makes a guest in the directory `to` of the one in `from`, with a program and its libraries in
/// it, as [`PLACE`] and the program's name.
///
/// # Errors
/// A file cannot be read or written; `NotFound` also if binutils are missing: with what debuggers
/// want, programs may be too large for the guest.
pub fn with_program(from: &Path, to: &Path, program: &Path) -> io::Result<()> {
    let name = program.file_name().unwrap_or_default();
    let stripped = to.join(name);
    strip(program, &stripped)?;
    std::os::unix::fs::symlink(from.join("kernel"), to.join("kernel"))?;
    std::fs::copy(from.join("initramfs"), to.join("initramfs"))?;
    let place = Path::new(&PLACE[1..]).join(name);
    let program = (place.to_string_lossy().into_owned(), stripped.clone());
    let files = libraries(&stripped)?.into_iter().chain([program]);
    let files: io::Result<Vec<_>> =
        files.map(|(place, path)| Ok((place, std::fs::read(path)?))).collect();
    put(to, &files?)
}

/// Makes a program or library without what debuggers want.
///
/// # Errors
/// Without binutils, and for what is no such file.
pub fn strip(from: &Path, to: &Path) -> io::Result<()> {
    let done = Command::new("strip").arg("-o").args([to, from]).status()?;
    if done.success() { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Puts files into the guest in a directory, by their paths there: in directories that it has, or
/// in `host`. A later file takes the place of an earlier one.
///
/// # Errors
/// The guest's archive cannot be written.
pub fn put(guest: &Path, files: &[(String, Vec<u8>)]) -> io::Result<()> {
    let mut archive = Vec::new();
    entry(&mut archive, &PLACE[1..], 0o040_755, &[]);
    files.iter().for_each(|(place, content)| entry(&mut archive, place, 0o100_755, content));
    entry(&mut archive, "TRAILER!!!", 0, &[]);
    // The kernel unpacks archives that follow each other.
    let initramfs = std::fs::OpenOptions::new().append(true).open(guest.join("initramfs"));
    initramfs?.write_all(&archive)
}

/// An entry of a "newc" archive (the kernel's buffer-format.rst).
fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    let (size, name_size) = (content.len(), name.len() + 1);
    let fields = [0, mode as usize, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    let fields: String = fields.iter().map(|field| format!("{field:08x}")).collect();
    for bytes in [format!("070701{fields}{name}\0").as_bytes(), content] {
        archive.extend(bytes);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
}

/// The places in the guest of a program's libraries and its loader, and where they are here. They
/// take the places of the guest's own: a daemon runs its own program, which must start without
/// being told where they are.
fn libraries(program: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let list = Command::new("ldd").arg(program).output()?;
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let mut libraries = Vec::new();
    for line in list.lines() {
        let Some((name, _)) = line.trim().rsplit_once(" (0x") else { continue };
        match name.split_once(" => ") {
            Some((name, path)) => libraries.push((format!("lib/{name}"), path.into())),
            None if name.starts_with('/') => libraries.push((name[1..].to_owned(), name.into())),
            None => {}
        }
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_its_files_at_multiples_of_four_bytes() {
        let here = tempfile::tempdir().unwrap();
        std::fs::write(here.path().join("initramfs"), "earlier.").unwrap();
        put(here.path(), &[("host/a".into(), b"12345".to_vec())]).unwrap();
        let archive = std::fs::read(here.path().join("initramfs")).unwrap();
        assert!(archive.starts_with(b"earlier.070701") && archive.len().is_multiple_of(4));
        let at = archive.windows(7).position(|bytes| bytes == b"host/a\0").unwrap();
        assert_eq!(&archive[at + 10..at + 15], b"12345");
        assert_eq!(&archive[at - 110 + 54..at - 110 + 62], b"00000005");
    }
}
