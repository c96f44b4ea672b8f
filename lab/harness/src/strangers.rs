//! Descriptors whose last close takes as long as their maker likes.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt};

/// A TCP socket with unsent data and a peer that does not read. Its last close waits for an hour,
/// or until the peer is gone.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3600))).unwrap();
    socket.set_nonblocking(true).unwrap();
    while rustix::io::write(&socket, &[0; 65536]).is_ok() {}
    (socket.into(), peer)
}

/// Sends bytes with descriptors.
///
/// # Errors
/// `EPERM` where descriptors are refused, otherwise the kernel's error.
pub fn send_with(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// How long requests to a file system wait at most. A program that is executed while it has such a
/// file holds up every reader of /proc on the machine.
const LONGEST: Duration = Duration::from_secs(40);
/// Set in the process of a test that is alone.
const ALONE: &str = "TOKLAT_TEST_ALONE";

/// A file system with one file. Requests for its attributes, and closes, wait until the test
/// releases them, or for 40 s since the test has last had them wait.
pub struct SlowFiles {
    mounted: tempfile::TempDir,
    asked: Arc<Mutex<Asked>>,
    _session: fuser::BackgroundSession,
}

#[derive(Default)]
struct Asked {
    answers: bool,
    /// Since when requests wait.
    held: Option<Instant>,
    closes: Vec<fuser::ReplyEmpty>,
    attributes: Vec<fuser::ReplyAttr>,
}

const FILE: fuser::INodeNo = fuser::INodeNo(2);

struct Files(Arc<Mutex<Asked>>);

fn attributes(ino: fuser::INodeNo) -> fuser::FileAttr {
    let is_file = ino == FILE;
    fuser::FileAttr {
        ino,
        size: 4096,
        blocks: 8,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_file { fuser::FileType::RegularFile } else { fuser::FileType::Directory },
        perm: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

impl fuser::Filesystem for Files {
    fn lookup(
        &self,
        _: &fuser::Request,
        _: fuser::INodeNo,
        name: &std::ffi::OsStr,
        reply: fuser::ReplyEntry,
    ) {
        if name == "file" {
            reply.entry(&Duration::ZERO, &attributes(FILE), fuser::Generation(0));
        } else {
            reply.error(fuser::Errno::ENOENT);
        }
    }

    fn getattr(
        &self,
        _: &fuser::Request,
        ino: fuser::INodeNo,
        _: Option<fuser::FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        let mut asked = self.0.lock().unwrap();
        if ino == FILE && !asked.answers {
            return asked.attributes.push(reply);
        }
        reply.attr(&Duration::ZERO, &attributes(ino));
    }

    fn flush(
        &self,
        _: &fuser::Request,
        _: fuser::INodeNo,
        _: fuser::FileHandle,
        _: fuser::LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        let mut asked = self.0.lock().unwrap();
        if asked.answers { reply.ok() } else { asked.closes.push(reply) }
    }
}

fn may_mount(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        crate::skip(test, "only root may mount");
        return false;
    }
    let is_there = std::path::Path::new("/dev/fuse").exists();
    if !is_there {
        crate::skip(test, "no /dev/fuse");
    }
    is_there
}

impl SlowFiles {
    /// Mounts the file system, in a process that runs this test alone: a process that another test
    /// starts has copies of this one's files, and would wait for their file system. Returns `None`
    /// in this process, once that one has passed the test; also if there can be no file system,
    /// which the last lines of the test run report.
    pub fn alone(test: &str) -> Option<Self> {
        if !may_mount(test) {
            return None;
        }
        let thread = std::thread::current();
        // The thread of a test has its name. With one thread, no other test runs.
        match thread.name().filter(|name| *name != "main") {
            Some(name) if std::env::var_os(ALONE).is_none() => {
                let mut again = std::process::Command::new(std::env::current_exe().unwrap());
                again.args(["--exact", name, "--nocapture"]).env(ALONE, "1");
                // The tally of that process must not mix with ours.
                let status = again.stdout(std::process::Stdio::null()).status().unwrap();
                assert!(status.success(), "{name} alone: {status}");
                None
            }
            _ => Self::mount(test),
        }
    }

    /// Mounts the file system. If that is not possible, returns `None`, and the last lines of the
    /// test run report it.
    pub fn mount(test: &str) -> Option<Self> {
        if !may_mount(test) {
            return None;
        }
        let (mounted, asked) = (tempfile::tempdir().unwrap(), Arc::default());
        // A data process has a user of its own, which must have access, too.
        let mut config = fuser::Config::default();
        config.acl = fuser::SessionACL::All;
        let session = fuser::spawn_mount(Files(Arc::clone(&asked)), mounted.path(), &config);
        let kept = Arc::downgrade(&asked);
        std::thread::spawn(move || {
            while let Some(asked) = kept.upgrade() {
                let held = asked.lock().unwrap().held;
                if held.is_some_and(|since| since.elapsed() > LONGEST) {
                    answer(&asked);
                }
                drop(asked);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let files = Self { mounted, asked, _session: session.unwrap() };
        files.hold();
        Some(files)
    }

    /// Opens the slow file once more.
    pub fn open(&self) -> SlowFile {
        let file = std::fs::File::options().read(true).write(true).open(self.path()).unwrap();
        SlowFile { asked: Arc::clone(&self.asked), file: file.into() }
    }

    /// The number of closes that wait.
    pub fn closes(&self) -> usize {
        self.asked.lock().unwrap().closes.len()
    }

    /// The path of the slow file.
    pub fn path(&self) -> std::path::PathBuf {
        self.mounted.path().join("file")
    }

    /// From now on, requests to the file system wait until they are answered.
    pub fn hold(&self) {
        let mut asked = self.asked.lock().unwrap();
        (asked.answers, asked.held) = (false, Some(Instant::now()));
    }

    /// Answers all waiting requests, and all later ones.
    pub fn answer(&self) {
        answer(&self.asked);
    }
}

impl Drop for SlowFiles {
    /// Answers all requests: a process that waits for one would wait forever, and not even SIGKILL
    /// ends it.
    fn drop(&mut self) {
        self.answer();
    }
}

fn answer(asked: &Mutex<Asked>) {
    let mut asked = asked.lock().unwrap();
    (asked.answers, asked.held) = (true, None);
    asked.closes.drain(..).for_each(fuser::ReplyEmpty::ok);
    for reply in asked.attributes.drain(..) {
        reply.attr(&Duration::ZERO, &attributes(FILE));
    }
}

/// An open slow file. When it is closed, its file system answers all requests, so that a failed
/// test ends.
pub struct SlowFile {
    asked: Arc<Mutex<Asked>>,
    file: OwnedFd,
}

impl AsFd for SlowFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for SlowFile {
    fn drop(&mut self) {
        answer(&self.asked);
    }
}

/// Makes 160,000 epoll instances watch a descriptor. Any event on it walks through all of them.
pub fn watch(fd: BorrowedFd<'_>) -> Vec<OwnedFd> {
    let copies: Vec<_> = (0..400).map(|_| fd.try_clone_to_owned().unwrap()).collect();
    let mut held = Vec::new();
    for _ in 0..400 {
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for copy in &copies {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&instance, copy, data, epoll::EventFlags::IN).unwrap();
        }
        held.push(instance);
    }
    held.extend(copies);
    held
}

/// Raises this process's limit of descriptors as far as it may.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).unwrap();
}
