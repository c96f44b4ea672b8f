//! The limit of a guest's mapped memory, by files and by messages.

use super::*;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

fn set_most(host: &mut Host, max_guest_memory: u64) {
    let command = Command::set_switch(&SwitchConfig { max_guest_memory, ..config() });
    assert_eq!(host.ask(&command, &[]), Answer::Done);
}

fn bytes_mapped(host: &Host) -> (u64, u64) {
    let state = state::State::map(&host.memory, &config()).unwrap();
    let memory = state.port(0).unwrap().memory();
    (memory.bytes, memory.refused)
}

/// Where memory lies in its file costs nothing; only its size is limited.
#[test]
fn regression_guest_memory_beyond_a_limit_is_refused_by_number() {
    const NOSPC: i32 = 28;
    let mut host = Host::start();
    set_most(&mut host, 4 * MIB);
    let mut guest = Guest::start(host.plug(0), 2);
    let file = memfd(4 * TIB);
    let map = |at: u64, offset: u64, size: u64| {
        [words(&[32, 3]), longs(&[offset, at * TIB, size])].concat()
    };
    let offset = 3 * TIB + 8192;
    guest.client.ask(command::DMA_MAP, &map(1, offset, MIB), &[file.as_fd()]).unwrap();
    let large = map(2, 0, 3 * MIB);
    assert_eq!(guest.refused(command::DMA_MAP, &large, &[file.as_fd()]), NOSPC);
    // The session goes on, and the device keeps the memory that it has.
    assert_eq!(guest.read(0x10), RECEIVE_AT as u32);
    wait_until("the refusal to be shown", || bytes_mapped(&host) == (2 * MIB, 1));
    host.replace(|| {});
    assert_eq!(guest.read(0x10), RECEIVE_AT as u32);
    assert_eq!(bytes_mapped(&host).0, 2 * MIB);
}

/// A copy of memory without files takes address space, too.
#[test]
fn regression_copies_of_guest_memory_have_the_same_limit() {
    let mut host = Host::start();
    set_most(&mut host, MIB);
    let mut client = Client::on(host.plug(0)).unwrap();
    let mut value = [0; 4];
    client.dma_map(None, 0, 0, 2 * MIB, true).unwrap();
    client.read(0, 0x10, &mut value).unwrap();
    wait_until("the refusal to be shown", || {
        let (bytes, refused) = bytes_mapped(&host);
        bytes == 0 && refused > 0
    });
    set_most(&mut host, 2 * MIB);
    client.dma_map(None, 0, TIB, 4096, true).unwrap();
    client.dma_unmap(TIB, 4096).unwrap();
    client.read(0, 0x10, &mut value).unwrap();
    wait_until("the copy to be there", || bytes_mapped(&host).0 == 2 * MIB);
}
