//! The test guest with the program in it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use vm::guest;

use super::guests::can_run;
use super::skip;

/// The program in the guest.
pub const PROGRAM: &str = "/host/toklat";

/// Returns a directory with the test guest and, in it, the program and this machine's libraries;
/// skips the test if they are missing.
pub fn guest_with_program(test: &str) -> Option<TempDir> {
    if !can_run(test) {
        return None;
    }
    let from = guest::find().unwrap();
    let here = tempfile::tempdir().unwrap();
    let program = here.path().join("toklat");
    if !strip(Path::new(env!("CARGO_BIN_EXE_toklat")), &program) {
        skip(
            test,
            "strip (binutils) is missing: with what debuggers want, the program is too large for the guest",
        );
        return None;
    }
    std::os::unix::fs::symlink(from.join("kernel"), here.path().join("kernel")).unwrap();
    std::fs::copy(from.join("initramfs"), here.path().join("initramfs")).unwrap();
    let read = |(place, path)| (place, std::fs::read(path).unwrap());
    let mut files: Vec<_> = libraries(&program).into_iter().map(read).collect();
    files.push((PROGRAM[1..].to_owned(), std::fs::read(program).unwrap()));
    put(here.path(), &files);
    Some(here)
}

/// Makes a program or library without what debuggers want; returns false without binutils.
pub fn strip(from: &Path, to: &Path) -> bool {
    let mut strip = Command::new("strip");
    strip.arg("-o").args([to, from]);
    strip.status().is_ok_and(|status| status.success())
}

/// Puts files into a guest, by their paths there: in directories that it has, or in `host`. A later
/// file takes the place of an earlier one.
pub fn put(guest: &Path, files: &[(String, Vec<u8>)]) {
    let initramfs = guest.join("initramfs");
    // The kernel unpacks archives that follow each other.
    let mut initramfs = std::fs::OpenOptions::new().append(true).open(initramfs).unwrap();
    let mut archive = Vec::new();
    entry(&mut archive, "host", 0o040_755, &[]);
    files.iter().for_each(|(place, content)| entry(&mut archive, place, 0o100_755, content));
    entry(&mut archive, "TRAILER!!!", 0, &[]);
    initramfs.write_all(&archive).unwrap();
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

/// The places in the guest of the program's libraries and its loader, and where they are here. They
/// take the places of the guest's own: a daemon runs its own program, which must start without
/// being told where they are.
fn libraries(program: &Path) -> Vec<(String, PathBuf)> {
    let list = Command::new("ldd").arg(program).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let mut libraries = Vec::new();
    for line in list.lines() {
        let Some((name, _)) = line.trim().rsplit_once(" (0x") else { continue };
        match name.split_once(" => ") {
            Some((name, path)) => libraries.push((format!("lib/{name}"), path.into())),
            None if name.starts_with('/') => libraries.push((name[1..].to_owned(), name.into())),
            None => {}
        }
    }
    libraries
}
