//! Bring-up: reset, EEPROM, PHY, rings.

use frame::Mac;

use super::receive::Receive;
use super::regs::{ctrl, ctrl_ext, eecd, mdic, rctl, rfctl, rxcsum, tctl};
use super::transmit::Transmit;
use super::{
    Combining, Config, Counts, Doorbells, E1000Driver, Interrupts, Moderation, regs, share,
};
use crate::{Dma, Regs};
use abi::csb::{CSBAH, CSBAL, NONE, PAGE};
use abi::e1000::Chip;

/// How many times a driver polls a NIC for completion.
const TRIES: usize = 1000;
/// The sum of the EEPROM's first 64 words.
const EEPROM_SUM: u16 = 0xbaba;
/// The PHY's address on the management bus.
const PHY: u32 = 1;
/// The 82540EM's I/O ports: one for the register's offset, one for its content.
const IO: (u64, u64) = (0, 4);

/// The reason why a NIC was not brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The size of a ring or buffer is out of range.
    #[error(
        "Rings have 8 to 4096 descriptors, a multiple of 8; buffers 256 << n bytes, up to 16384"
    )]
    Sizes,
    /// There is not enough memory for rings and buffers.
    #[error("The device's memory is too small for the rings and buffers that were asked for")]
    Memory,
    /// The NIC does not complete its reset.
    #[error("The NIC does not come out of its reset")]
    Reset,
    /// The EEPROM does not answer.
    #[error("The NIC's EEPROM does not answer")]
    Eeprom,
    /// The EEPROM's sum is wrong.
    #[error("The sum of the NIC's EEPROM is {0:#06x}, not 0xbaba")]
    Checksum(u16),
    /// The PHY does not answer.
    #[error("The NIC's PHY does not answer")]
    Phy,
    /// The NIC does not support the requested status block.
    #[error("The NIC does not understand the status block")]
    Block,
}

impl<R: Regs> E1000Driver<R> {
    /// Brings a NIC up, with rings and buffers in `dma`. Its PCI function must be enabled, with bus
    /// mastering.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(regs: R, dma: &mut Dma, config: Config) -> Result<Self, SetupError> {
        Self::build(regs, dma, config, None)
    }

    /// Works as [`new`](Self::new), with all frames in buffers of the caller's, which change hands
    /// by [`Lent`](crate::Lent). The receive descriptors begin with those at the device's addresses
    /// `lent`, of [`Config::buffer`] bytes each, or without any if there are none.
    ///
    /// # Errors
    /// [`SetupError`]; [`SetupError::Memory`] if there are some, but fewer than descriptors.
    pub fn over(regs: R, dma: &mut Dma, config: Config, lent: &[u64]) -> Result<Self, SetupError> {
        Self::build(regs, dma, config, Some(lent))
    }

    fn build(
        regs: R,
        dma: &mut Dma,
        config: Config,
        lent: Option<&[u64]>,
    ) -> Result<Self, SetupError> {
        let sizes = [config.transmit, config.receive];
        let rings = sizes.iter().all(|size| (8..=4096).contains(size) && size.is_multiple_of(8));
        if !rings || !(256..=16384).contains(&config.buffer) || !config.buffer.is_power_of_two() {
            return Err(SetupError::Sizes);
        }
        let is_540 = config.chip == Chip::Em82540;
        let delayed = config.moderation.transmit != 0;
        let buffers = (if lent.is_some() { 0 } else { config.transmit }, config.buffer);
        let transmit = Transmit::new(dma, config.transmit, buffers, delayed);
        let forms = (config.extended && !is_540, is_540);
        let receive = Receive::new(dma, (config.receive, config.buffer), lent, forms);
        let shared = match config.doorbells {
            Doorbells::Block(version) => {
                let page = dma.take(PAGE as usize, PAGE as usize);
                let shared = page.and_then(|page| share(page, &config, version));
                Some(shared.ok_or(SetupError::Memory)?)
            }
            _ => None,
        };
        let mut driver = Self {
            regs,
            config,
            mac: Mac::default(),
            transmit: transmit.ok_or(SetupError::Memory)?,
            receive: receive.ok_or(SetupError::Memory)?,
            shared,
            combining: Combining::Idle,
            counts: Counts::default(),
            returned: 0,
        };
        driver.probe()?;
        driver.open()?;
        Ok(driver)
    }

    /// Resets the NIC, and sets what stays until the next reset.
    fn probe(&mut self) -> Result<(), SetupError> {
        self.reset()?;
        let sum =
            (0..64).try_fold(0u16, |sum, word| Ok(sum.wrapping_add(self.read_eeprom(word)?)))?;
        if sum != EEPROM_SUM {
            return Err(SetupError::Checksum(sum));
        }
        let mut address = [0; 6];
        for (word, bytes) in (0..).zip(address.chunks_exact_mut(2)) {
            bytes.copy_from_slice(&self.read_eeprom(word)?.to_le_bytes());
        }
        self.mac = Mac::new(address);
        // The first of the PHY's two identifier words holds the upper bits of the maker's number
        // (OUI).
        match self.read_phy(2)? {
            0 | 0xffff => Err(SetupError::Phy),
            _ => Ok(()),
        }
    }

    /// Global reset (8254x manual, 14.3 and 13.4.1; 82574 datasheet, 4.6.3).
    fn reset(&mut self) -> Result<(), SetupError> {
        self.set(regs::IMC, u32::MAX);
        self.set(regs::RCTL, 0);
        self.set(regs::TCTL, tctl::PSP);
        self.flush_writes();
        self.regs.pause(10_000);
        let control = self.get(regs::CTRL) | ctrl::RST;
        match self.config.chip {
            // The chip cannot acknowledge a memory access during its reset, so the driver uses I/O.
            Chip::Em82540 => {
                let (bar, (address, data)) = (self.regs.ports(), IO);
                self.counts.writes += 2;
                self.regs.write32(bar, address, regs::CTRL as u32);
                self.regs.write32(bar, data, control);
            }
            Chip::L82574 => self.set(regs::CTRL, control),
        }
        self.regs.pause(10_000);
        let is_done = |driver: &mut Self| driver.get(regs::CTRL) & ctrl::RST == 0;
        let done = self.until(is_done)
            && (self.config.chip == Chip::Em82540
                || self.until(|driver| driver.get(regs::EECD) & eecd::AUTO_RD != 0));
        if self.config.chip == Chip::Em82540 {
            // The NIC must not answer ARP requests by itself.
            let manage = self.get(regs::MANC) & !(1 << 13);
            self.set(regs::MANC, manage);
        }
        self.set(regs::IMC, u32::MAX);
        self.get(regs::ICR);
        if done { Ok(()) } else { Err(SetupError::Reset) }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        (0..TRIES).any(|_| {
            let done = done(self);
            if !done {
                self.regs.pause(5);
            }
            done
        })
    }

    // --- EEPROM (8254x manual, 5.3, 13.4.3 and 13.4.4; 82574 datasheet, 10.2.1.4) ---

    fn read_eeprom(&mut self, word: u32) -> Result<u16, SetupError> {
        match self.config.chip {
            Chip::Em82540 => self.read_eeprom_by_wire(word),
            Chip::L82574 => {
                self.set(regs::EERD, word << 2 | 1);
                let mut value = 0;
                let done = self.until(|driver| {
                    value = driver.get(regs::EERD);
                    value & 2 != 0
                });
                if done { Ok((value >> 16) as u16) } else { Err(SetupError::Eeprom) }
            }
        }
    }

    /// Microwire: a start bit and an opcode of two, six address bits, sixteen data bits back.
    fn read_eeprom_by_wire(&mut self, word: u32) -> Result<u16, SetupError> {
        let idle = self.get(regs::EECD) & !(eecd::SK | eecd::CS | eecd::DI);
        self.set(regs::EECD, idle | eecd::REQ);
        if !self.until(|driver| driver.get(regs::EECD) & eecd::GNT != 0) {
            return Err(SetupError::Eeprom);
        }
        let selected = idle | eecd::REQ | eecd::CS;
        self.set(regs::EECD, selected);
        let command = 0b110 << 6 | word;
        for bit in (0..9).rev() {
            let data = if command >> bit & 1 != 0 { eecd::DI } else { 0 };
            self.clock_eeprom(selected | data);
        }
        let mut value = 0;
        for _ in 0..16 {
            self.set(regs::EECD, selected | eecd::SK);
            self.regs.pause(50);
            value = value << 1 | u16::from(self.get(regs::EECD) & eecd::DO != 0);
            self.set(regs::EECD, selected);
            self.regs.pause(50);
        }
        self.set(regs::EECD, idle | eecd::REQ);
        self.set(regs::EECD, idle);
        Ok(value)
    }

    fn clock_eeprom(&mut self, wires: u32) {
        for clock in [0, eecd::SK, 0] {
            self.set(regs::EECD, wires | clock);
            self.regs.pause(50);
        }
    }

    // --- PHY (8254x manual, 13.4.7) ---

    fn read_phy(&mut self, register: u32) -> Result<u16, SetupError> {
        self.set(regs::MDIC, (register << 16) | (PHY * mdic::PHY) | mdic::READ);
        let mut value = 0;
        let done = self.until(|driver| {
            value = driver.get(regs::MDIC);
            value & mdic::READY != 0
        });
        let good = done && value & mdic::ERROR == 0;
        if good { Ok(value as u16) } else { Err(SetupError::Phy) }
    }

    // --- rings ---

    /// Brings the NIC up again, as after a reset. Unfinished frames are lost, and so are received
    /// ones.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn restart(&mut self) -> Result<(), SetupError> {
        self.returned = self.counts.done;
        self.reset()?;
        self.open()
    }

    fn open(&mut self) -> Result<(), SetupError> {
        self.combining = Combining::Idle;
        let control = self.get(regs::CTRL) & !(ctrl::FRCSPD | ctrl::FRCDPX | ctrl::VME);
        let vlan = if self.config.vlan { ctrl::VME } else { 0 };
        self.set(regs::CTRL, control | ctrl::SLU | ctrl::ASDE | ctrl::FD | vlan);
        self.set_filters();
        (regs::STATISTICS..regs::STATISTICS_END).step_by(4).for_each(|at| {
            self.get(at);
        });
        self.open_transmit();
        self.open_receive();
        self.announce()?;
        self.set(regs::TCTL, tctl::EN | tctl::PSP | tctl::CT_COLD);
        let receive = self.receive_control();
        self.set(regs::RCTL, receive | rctl::EN);
        self.refill();
        self.turn_on();
        self.open_interrupts();
        Ok(())
    }

    fn set_filters(&mut self) {
        self.set(regs::VET, 0x8100);
        (0..128).for_each(|i| self.set(regs::VFTA + 4 * i, 0));
        (0..128).for_each(|i| self.set(regs::MTA + 4 * i, 0));
        let [a, b, c, d, e, f] = self.mac.octets();
        self.set(regs::RAL, u32::from_le_bytes([a, b, c, d]));
        self.set(regs::RAL + 4, u32::from_le_bytes([e, f, 0, 0x80]));
        (1..16).for_each(|i| {
            self.set(regs::RAL + 8 * i, 0);
            self.set(regs::RAL + 8 * i + 4, 0);
        });
        let flow = [(regs::FCAL, 0x00c2_8001), (regs::FCAH, 0x0100), (regs::FCT, 0x8808)];
        flow.into_iter().for_each(|(at, value)| self.set(at, value));
        [regs::FCTTV, regs::FCRTL, regs::FCRTH].into_iter().for_each(|at| self.set(at, 0));
    }

    /// Transmit initialization (8254x manual, 14.5; 82574 datasheet, 4.6.6).
    fn open_transmit(&mut self) {
        self.transmit.restart();
        let at = self.transmit.ring.device;
        self.set(regs::TDLEN, 16 * self.transmit.size);
        self.set(regs::TDBAH, (at >> 32) as u32);
        self.set(regs::TDBAL, at as u32);
        self.set(regs::TDT, 0);
        self.set(regs::TDH, 0);
        // Back-to-back gaps for copper, as the manuals recommend.
        self.set(regs::TIPG, 10 | 8 << 10 | 6 << 20);
        let Moderation { transmit, transmit_most, .. } = self.config.moderation;
        self.set(regs::TIDV, transmit.into());
        self.set(regs::TADV, transmit_most.into());
        // Thresholds in descriptors; each descriptor is written back at once.
        self.set(regs::TXDCTL, 0x0101_0000);
    }

    /// Receive initialization (8254x manual, 14.4; 82574 datasheet, 4.6.5).
    fn open_receive(&mut self) {
        self.receive.restart();
        let receive = self.receive_control();
        self.set(regs::RCTL, receive);
        let Moderation { receive, receive_most, interval, .. } = self.config.moderation;
        self.set(regs::RDTR, receive.into());
        self.set(regs::RADV, receive_most.into());
        self.set(regs::ITR, interval.into());
        let at = self.receive.ring.device;
        self.set(regs::RDLEN, 16 * self.receive.size);
        self.set(regs::RDBAH, (at >> 32) as u32);
        self.set(regs::RDBAL, at as u32);
        self.set(regs::RDT, 0);
        self.set(regs::RDH, 0);
        let sums = if self.config.checksum { rxcsum::IPOFL | rxcsum::TUOFL } else { 0 };
        self.set(regs::RXCSUM, sums);
        if self.config.chip == Chip::L82574 {
            let extended = if self.config.extended { rfctl::EXTEN } else { 0 };
            self.set(regs::RFCTL, extended | rfctl::ACK_DIS);
        }
    }

    fn receive_control(&self) -> u32 {
        let Config { buffer, long_frames, promiscuous, chip, .. } = self.config;
        let size = match buffer {
            256..=2048 => (2048 / buffer).ilog2() << 16,
            _ => (32768 / buffer).ilog2() << 16 | rctl::BSEX,
        };
        let flag = |on: bool, bits: u32| if on { bits } else { 0 };
        rctl::BAM
            | size
            | flag(long_frames, rctl::LPE)
            | flag(promiscuous, rctl::UPE | rctl::MPE)
            | flag(chip == Chip::L82574, rctl::SECRC)
    }

    /// Sets up a new status block and announces it to the NIC: after the reset, before the rings
    /// run. A reset keeps the old block, so the driver takes that away first.
    fn announce(&mut self) -> Result<(), SetupError> {
        let Doorbells::Block(version) = self.config.doorbells else { return Ok(()) };
        self.set(CSBAL, 0);
        self.get(regs::STATUS);
        let page = self.shared.take().map(|shared| shared.page);
        let shared = page.and_then(|page| share(page, &self.config, version));
        let shared = shared.ok_or(SetupError::Memory)?;
        let at = shared.page.device();
        self.set(CSBAH, (at >> 32) as u32);
        self.set(CSBAL, at as u32);
        // Posted writes may take long to arrive. The answer to a read proves that they have.
        self.get(regs::STATUS);
        let accepted = shared.block.accepted();
        self.shared = Some(shared);
        if accepted == Some([1, 1]) { Ok(()) } else { Err(SetupError::Block) }
    }

    /// Switches the queues to the block.
    fn turn_on(&mut self) {
        let Some(shared) = &mut self.shared else { return };
        shared.send.turn(true);
        shared.receive.turn(true);
        // The device does not poll yet, so the first frame should interrupt.
        shared.receive.sleep(NONE);
        let (send, receive) = (self.transmit.published, self.receive.published);
        self.ring(regs::TDT, send);
        self.ring(regs::RDT, receive);
    }

    fn open_interrupts(&mut self) {
        if self.config.interrupts == Interrupts::Msix {
            let interval = self.config.moderation.interval;
            // Vectors 0, 1 and 2: receive, transmit, the rest. Bit 31: each sent descriptor is a
            // cause.
            self.set(regs::IVAR, 1 << 31 | (8 | 2) << 16 | (8 | 1) << 8 | 8);
            (0..2).for_each(|vector| self.set(regs::EITR + 4 * vector, interval.into()));
            // Messages mask their causes, unless reading ICR does (82574 datasheet, 10.2.4.7). With
            // a status block, nothing must be masked, because the driver's request in the block
            // decides.
            let extended = self.get(regs::CTRL_EXT) & !ctrl_ext::IAME;
            let (masks, masked) = match self.shared.is_some() {
                true => (ctrl_ext::IAME, 0),
                false => (ctrl_ext::EIAME, u32::MAX),
            };
            self.set(regs::IAM, masked);
            self.set(regs::CTRL_EXT, extended | ctrl_ext::PBA_CLR | ctrl_ext::DRV_LOAD | masks);
            self.set(regs::EIAC, regs::cause::RXQ0 | regs::cause::TXQ0);
        }
        let causes = self.causes();
        if causes != 0 {
            self.set(regs::IMS, causes);
            self.flush_writes();
        }
    }

    /// Stops the NIC: afterwards, it uses none of the driver's memory.
    pub fn stop(&mut self) {
        self.set(regs::IMC, u32::MAX);
        self.set(regs::RCTL, 0);
        self.set(regs::TCTL, tctl::PSP);
        if self.shared.is_some() {
            self.set(CSBAL, 0);
        }
        self.get(regs::STATUS);
    }
}
