//! The archive format of an initramfs: "newc", as the kernel's
//! Documentation/driver-api/early-userspace/buffer-format.rst has it.

use std::fmt::Write;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive in the making. All belongs to root, and time is 0, so that the same input makes the
/// same bytes.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inodes: u32,
}

impl Archive {
    /// A directory; its parent has to be there.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY, (0, 0), &[]);
    }

    /// A file that may be executed.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, PROGRAM, (0, 0), content);
    }

    /// A device by its numbers, which needs no root in here.
    pub fn device(&mut self, path: &str, numbers: (u32, u32)) {
        self.entry(path, CHARACTER_DEVICE, numbers, &[]);
    }

    /// The archive with its trailer.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.inodes += 1;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let size = u32::try_from(content.len()).expect("files of an initramfs are below 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("paths are short");
        let mut header = String::from("070701");
        let fields =
            [self.inodes, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_size, 0];
        for field in fields {
            let _ = write!(header, "{field:08x}");
        }
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Names and contents begin at multiples of four.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[rustfmt::skip]
    #[test]
    fn an_archive_is_what_cpio_writes() {
        let mut archive = Archive::default();
        archive.directory("d");
        archive.device("c", (5, 1));
        archive.file("d/file", b"54321");
        let bytes = archive.finish();
        let expected = concat!(
            "070701", "00000001", "000041ed", "00000000", "00000000", "00000002", "00000000",
            "00000000", "00000000", "00000000", "00000000", "00000000", "00000002", "00000000",
            "d\0",
            "070701", "00000002", "00002180", "00000000", "00000000", "00000001", "00000000",
            "00000000", "00000000", "00000000", "00000005", "00000001", "00000002", "00000000",
            "c\0",
            "070701", "00000003", "000081ed", "00000000", "00000000", "00000001", "00000000",
            "00000005", "00000000", "00000000", "00000000", "00000000", "00000007", "00000000",
            "d/file\0", "\0\0\0", "54321", "\0\0\0",
            "070701", "00000004", "00000000", "00000000", "00000000", "00000001", "00000000",
            "00000000", "00000000", "00000000", "00000000", "00000000", "0000000b", "00000000",
            "TRAILER!!!\0", "\0\0\0",
        );
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}
