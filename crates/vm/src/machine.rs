//! The description of a virtual machine, and its QEMU command line.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use frame::Mac;
use topology::NicModel;

use super::{Accelerator, Version};

/// A virtual machine with one NIC.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of the machine, shown in process lists.
    pub name: String,
    /// The accelerator that executes the machine.
    pub accelerator: Accelerator,
    /// Memory in MiB. A vhost-user NIC shares it with its back end.
    pub memory: u32,
    /// Processors.
    pub cpus: u8,
    /// What the machine boots.
    pub boot: Boot,
    /// It has an IOMMU, which its NIC is behind.
    pub iommu: bool,
    /// Its NIC.
    pub nic: Nic,
    /// Where the machine's console is.
    pub console: Console,
    /// More arguments, appended unchanged.
    pub more: Vec<OsString>,
}

/// What a virtual machine boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Boot {
    /// A disk image: qcow2, or raw.
    Image {
        /// The file.
        path: PathBuf,
        /// Discards the guest's writes when the machine ends, so the image stays as it is.
        snapshot: bool,
    },
    /// A kernel.
    Kernel {
        /// The file.
        kernel: PathBuf,
        /// Its initramfs.
        initrd: Option<PathBuf>,
        /// The kernel's command line.
        append: String,
    },
}

/// A NIC.
#[derive(Clone, Debug)]
pub struct Nic {
    /// The model of card that the guest sees.
    pub model: Model,
    /// Its address.
    pub mac: Mac,
    /// Where the NIC's frames go.
    pub backend: Backend,
    /// Pairs of queues; only [`Model::Virtio`] has more than one.
    pub queues: u16,
    /// Packed virtqueues instead of split ones.
    pub packed: bool,
}

/// Which device the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Model {
    /// virtio-net.
    Virtio,
    /// QEMU's Intel 82540EM.
    E1000,
    /// QEMU's Intel 82574L.
    E1000e,
    /// QEMU's AMD PCnet.
    Pcnet,
    /// The port's Intel 82540EM (driver e1000).
    #[value(name = "82540em")]
    I82540em,
    /// The port's Intel 82574L (driver e1000e).
    #[value(name = "82574l")]
    I82574l,
    /// The port's AMD Am79C970A (driver pcnet32).
    Am79c970a,
    /// The port's AMD Am79C973 (driver pcnet32).
    Am79c973,
}

/// How QEMU has a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// QEMU's name of the device.
    pub driver: &'static str,
    /// How the model is plugged into a switch.
    pub plug: Plug,
    /// The model can have several pairs of queues, and packed virtqueues.
    pub queues: bool,
}

/// How a NIC is plugged into a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plug {
    /// By vhost-user: the port serves its queues.
    VhostUser,
    /// QEMU emulates the device, and exchanges frames over a stream socket.
    Stream,
    /// By vfio-user: the port emulates the device.
    VfioUser,
}

impl Model {
    /// The model that the port is to emulate; `None` if it emulates none.
    #[must_use]
    pub const fn emulated(self) -> Option<NicModel> {
        match self {
            Self::Virtio | Self::E1000 | Self::E1000e | Self::Pcnet => None,
            Self::I82540em => Some(NicModel::I82540EM),
            Self::I82574l => Some(NicModel::I82574L),
            Self::Am79c970a => Some(NicModel::AM79C970A),
            Self::Am79c973 => Some(NicModel::AM79C973),
        }
    }

    /// The port's default interrupt moderation, in the syntax of `toklat port add --interrupts`.
    /// Each interrupt of an emulated card costs its guest several register accesses, and each
    /// access is a message. So interrupts that only report sent frames are delayed. Without KVM,
    /// QEMU's main loop forwards each interrupt, which takes longer than the switch needs for a
    /// batch. So under heavy traffic interrupts are coalesced.
    #[must_use]
    pub const fn usual_interrupts(self, accelerator: Accelerator) -> Option<&'static str> {
        match (self.kind().plug, accelerator) {
            (Plug::VfioUser, _) => Some("sent=1000"),
            (Plug::VhostUser, Accelerator::Tcg) => Some("delay=500,adaptive"),
            _ => None,
        }
    }

    /// How QEMU provides this model.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Virtio => Kind { driver: "virtio-net-pci", plug: Plug::VhostUser, queues: true },
            Self::E1000 => Kind { driver: "e1000", plug: Plug::Stream, queues: false },
            Self::E1000e => Kind { driver: "e1000e", plug: Plug::Stream, queues: false },
            Self::Pcnet => Kind { driver: "pcnet", plug: Plug::Stream, queues: false },
            Self::I82540em | Self::I82574l | Self::Am79c970a | Self::Am79c973 => {
                Kind { driver: "vfio-user-pci", plug: Plug::VfioUser, queues: false }
            }
        }
    }

    /// The oldest QEMU that can run a machine with this model.
    #[must_use]
    pub const fn least(self) -> Version {
        match self.kind().plug {
            Plug::VhostUser | Plug::Stream => Version::OLDEST,
            Plug::VfioUser => Version::VFIO_USER,
        }
    }

    /// The back end of a NIC of this model, if its port has this socket.
    #[must_use]
    pub fn backend(self, socket: PathBuf) -> Backend {
        match self.kind().plug {
            Plug::VhostUser => Backend::VhostUser(socket),
            Plug::Stream => Backend::Stream(socket),
            Plug::VfioUser => Backend::VfioUser(socket),
        }
    }
}

/// Where a NIC's frames go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A vhost-user back end that listens at this path.
    VhostUser(PathBuf),
    /// A vfio-user server that listens at this path and emulates the device. The server decides its
    /// MAC address.
    VfioUser(PathBuf),
    /// A stream socket that listens at this path. Each frame follows its length.
    Stream(PathBuf),
    /// An existing tap interface, with or without the kernel's vhost-net.
    Tap {
        /// Its name.
        ifname: String,
        /// Whether the kernel (vhost-net) serves the queues.
        vhost: bool,
    },
    /// A stream socket to another QEMU. If `listen` is set, the other QEMU connects to this one.
    Peer {
        /// The socket.
        path: PathBuf,
        /// True if this QEMU listens; otherwise it connects.
        listen: bool,
    },
}

/// Where the console is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Console {
    /// The terminal. Ctrl-A c switches to QEMU's monitor, and Ctrl-A x ends QEMU.
    Terminal,
    /// Plain standard input and output.
    Plain,
}

impl Machine {
    /// QEMU's arguments.
    #[must_use]
    pub fn arguments(&self, version: Version) -> Vec<OsString> {
        let mut line = Line::default();
        let Self { accelerator, memory, .. } = self;
        line.option("-name", format!("{},debug-threads=on", self.name));
        line.words(&["-nodefaults", "-no-user-config", "-display", "none"]);
        line.option("-machine", format!("q35,accel={},memory-backend=memory", accelerator.name()));
        line.option("-cpu", accelerator.cpu());
        line.option("-smp", self.cpus.to_string());
        line.option("-m", format!("{memory}M"));
        line.option("-object", format!("memory-backend-memfd,id=memory,size={memory}M,share=on"));
        line.words(match self.console {
            Console::Terminal => &["-serial", "mon:stdio"],
            Console::Plain => &["-serial", "stdio", "-monitor", "none"],
        });
        self.boot.write(&mut line);
        if self.iommu {
            // Only devices that come later are behind it. The caching mode has the guest announce
            // what it maps, so that QEMU can pass that on to the NIC's server.
            line.option("-machine", "kernel-irqchip=split");
            line.option("-device", "intel-iommu,intremap=on,caching-mode=on");
        }
        self.nic.write(&mut line, version, *accelerator);
        line.0.extend(self.more.iter().cloned());
        line.0
    }
}

impl Boot {
    fn write(&self, line: &mut Line) {
        match self {
            Self::Image { path, snapshot } => {
                let format = if is_qcow2(path) { "qcow2" } else { "raw" };
                let mut drive = OsString::from(format!("if=virtio,format={format},"));
                drive.push(if *snapshot { "snapshot=on,file=" } else { "file=" });
                drive.push(escaped(path));
                line.option("-drive", drive);
                line.option("-device", "virtio-rng-pci");
            }
            Self::Kernel { kernel, initrd, append } => {
                line.option("-kernel", kernel);
                if let Some(initrd) = initrd {
                    line.option("-initrd", initrd);
                }
                line.option("-append", append);
                line.words(&["-no-reboot", "-device", "isa-debug-exit,iobase=0xf4,iosize=1"]);
            }
        }
    }
}

/// Returns true if the file has qcow2's magic.
fn is_qcow2(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && magic == *b"QFI\xfb"
}

impl Nic {
    fn write(&self, line: &mut Line, version: Version, accelerator: Accelerator) {
        let queues = self.queues;
        match &self.backend {
            Backend::VhostUser(path) => {
                // QEMU connects again if the back end goes away. Newer versions take milliseconds,
                // older ones seconds.
                let again =
                    if version >= Version(9, 2) { "reconnect-ms=200" } else { "reconnect=1" };
                let mut socket = OsString::from(format!("socket,id=chardev0,{again},path="));
                socket.push(escaped(path));
                line.option("-chardev", socket);
                line.option(
                    "-netdev",
                    format!("vhost-user,id=net0,chardev=chardev0,queues={queues}"),
                );
            }
            Backend::VfioUser(path) => {
                // QEMU takes nested options only in this form.
                let socket = serde_json::json!({ "type": "unix", "path": path.to_string_lossy() });
                let device = serde_json::json!({ "driver": "vfio-user-pci", "id": "nic0", "socket": socket });
                line.option("-device", device.to_string());
                return;
            }
            Backend::Stream(path) | Backend::Peer { path, listen: false } => {
                line.option("-netdev", stream("off", path));
            }
            Backend::Peer { path, listen: true } => line.option("-netdev", stream("on", path)),
            Backend::Tap { ifname, vhost } => {
                let vhost = if *vhost { "on" } else { "off" };
                let rest = "script=no,downscript=no";
                let mut tap = format!("tap,id=net0,ifname={ifname},vhost={vhost},{rest}");
                if queues > 1 {
                    tap += &format!(",queues={queues}");
                }
                line.option("-netdev", tap);
            }
        }
        line.option("-device", self.device(version, accelerator));
    }

    /// What the guest sees.
    fn device(&self, version: Version, accelerator: Accelerator) -> String {
        let Self { model, mac, queues, .. } = self;
        let Kind { driver, .. } = model.kind();
        let mut device = format!("{driver},netdev=net0,mac={mac},romfile=");
        if *model != Model::Virtio {
            return device;
        }
        let vhost_user = matches!(self.backend, Backend::VhostUser(_));
        if vhost_user {
            device += ",rx_queue_size=1024,tx_queue_size=1024";
        }
        if self.packed {
            device += ",packed=on";
        }
        if *queues > 1 {
            device += ",mq=on";
        }
        if vhost_user && accelerator == Accelerator::Tcg && version < Version::VECTORS {
            // QEMU before this version crashes if another process serves queues with MSI-X vectors
            // and there is no KVM to route them (7.2: segmentation fault in
            // msix_set_vector_notifiers).
            device += ",vectors=0";
        } else if *queues > 1 {
            device += &format!(",vectors={}", 2 * queues + 2);
        }
        device
    }
}

fn stream(server: &str, path: &Path) -> OsString {
    let mut stream =
        OsString::from(format!("stream,id=net0,server={server},addr.type=unix,addr.path="));
    stream.push(escaped(path));
    stream
}

/// Escapes a file name within a QEMU option: a comma is written twice.
fn escaped(path: &Path) -> OsString {
    match path.to_str() {
        Some(text) => text.replace(',', ",,").into(),
        None => path.into(),
    }
}

/// A command line under construction.
#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn words(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(Into::into));
    }

    fn option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.extend([name.into(), value.as_ref().to_owned()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quoted;

    fn machine(model: Model, backend: Backend) -> Machine {
        let nic = Nic { model, mac: Mac::local(7), backend, queues: 1, packed: false };
        let boot =
            Boot::Kernel { kernel: "/k".into(), initrd: Some("/i".into()), append: "quiet".into() };
        let (accelerator, console) = (Accelerator::Tcg, Console::Plain);
        Machine {
            name: "vm1".into(),
            accelerator,
            memory: 256,
            cpus: 2,
            boot,
            iommu: false,
            nic,
            console,
            more: vec!["-s".into()],
        }
    }

    fn line(machine: &Machine, version: Version) -> String {
        quoted(machine.arguments(version).iter().map(OsString::as_os_str))
    }

    #[test]
    fn a_virtio_nic_gets_shared_memory_and_a_socket_that_connects_again() {
        let machine = machine(Model::Virtio, Backend::VhostUser("/run/a,b.sock".into()));
        let old = line(&machine, Version(7, 2));
        for part in [
            "-machine q35,accel=tcg,memory-backend=memory -cpu max -smp 2 -m 256M",
            "-object memory-backend-memfd,id=memory,size=256M,share=on",
            "-chardev socket,id=chardev0,reconnect=1,path=/run/a,,b.sock",
            "-netdev vhost-user,id=net0,chardev=chardev0,queues=1",
            "-device virtio-net-pci,netdev=net0,mac=02:00:00:00:00:07,romfile=,rx_queue_size=1024,tx_queue_size=1024,vectors=0 -s",
            "-kernel /k -initrd /i -append quiet",
        ] {
            assert!(old.contains(part), "{part} is not in {old}");
        }
        assert!(line(&machine, Version(9, 2)).contains("reconnect-ms=200"));
    }

    #[test]
    fn queues_and_their_kind_are_the_device_s() {
        let mut machine = machine(Model::Virtio, Backend::VhostUser("/s".into()));
        (machine.nic.queues, machine.nic.packed) = (4, true);
        let line = line(&machine, Version(7, 2));
        assert!(line.contains("queues=4") && line.contains(",packed=on,mq=on,vectors=0"), "{line}");
    }

    #[test]
    fn other_models_have_qemu_s_sockets_and_taps() {
        let stream = machine(Model::E1000, Backend::Stream("/s".into()));
        let line_of_stream = line(&stream, Version(7, 2));
        assert!(
            line_of_stream
                .contains("-netdev stream,id=net0,server=off,addr.type=unix,addr.path=/s")
        );
        assert!(line_of_stream.contains("-device e1000,netdev=net0,mac=02:00:00:00:00:07"));
        let tap = machine(Model::Pcnet, Backend::Tap { ifname: "t0".into(), vhost: true });
        let line_of_tap = line(&tap, Version(7, 2));
        assert!(
            line_of_tap
                .contains("tap,id=net0,ifname=t0,vhost=on,script=no,downscript=no -device pcnet")
        );
    }

    #[test]
    fn a_device_of_a_port_is_named_by_its_socket_alone() {
        let machine = machine(Model::E1000, Backend::VfioUser("/run/a b.sock".into()));
        let line = line(&machine, Version::VFIO_USER);
        let device = r#"-device '{"driver":"vfio-user-pci","id":"nic0","socket":{"path":"/run/a b.sock","type":"unix"}}' -s"#;
        assert!(line.contains(device) && !line.contains("-netdev"), "{line}");
        assert!(line.contains("memory-backend-memfd") && line.contains("share=on"), "{line}");
    }

    #[test]
    fn an_iommu_comes_before_the_device_that_is_behind_it() {
        let mut machine = machine(Model::E1000, Backend::VfioUser("/s".into()));
        assert!(!line(&machine, Version::VFIO_USER).contains("iommu"));
        machine.iommu = true;
        let line = line(&machine, Version::VFIO_USER);
        let at = |what: &str| line.find(what).unwrap_or_else(|| panic!("{what}: {line}"));
        assert!(at("intel-iommu,intremap=on,caching-mode=on") < at("vfio-user-pci"));
        assert!(at("kernel-irqchip=split") < at("vfio-user-pci"));
    }

    #[test]
    fn an_image_s_format_is_looked_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, b"QFI\xfb more").unwrap();
        let mut machine = machine(Model::Virtio, Backend::Stream("/s".into()));
        machine.boot = Boot::Image { path: path.clone(), snapshot: true };
        assert!(line(&machine, Version(7, 2)).contains("format=qcow2,snapshot=on,file="));
        std::fs::write(&path, b"").unwrap();
        assert!(line(&machine, Version(7, 2)).contains("format=raw"));
    }
}
