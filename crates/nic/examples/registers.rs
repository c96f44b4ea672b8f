//! Prints `docs/registers.md`, which `cargo xtask registers` writes.
#![allow(clippy::print_stdout, reason = "it is what this program is for")]

use nic::kind::tables;
use nic::model::regs::{Access, PageUse, RegisterTable, Row};

const INTRODUCTION: &str = "# Registers

Each row is one row of a model's table, from which it decodes accesses. `cargo xtask registers` makes this page from the tables;
`cargo xtask check` compares them.

- *access*: `rw` keeps what is written to the bits of the mask; `halted` does so while the device is stopped; `ro` ignores
  writes; `rc` goes back to zero when it is read; `wo` reads as zero.
- *survives*: bits that a reset by the driver leaves as they are.
- *no trap*: where doorbells lie in memory (`--doorbell shared`), the driver writes it there: to set something up, or as a
  doorbell; or finds there where the device is.
";

fn main() {
    print!("{INTRODUCTION}");
    tables().iter().for_each(print_table);
}

fn print_table(table: &RegisterTable) {
    println!("\n## {}\n", table.title);
    println!("| at | name | chips | access | mask | after a reset | effect | survives | no trap |");
    println!("|---|---|---|---|---|---|---|---|---|");
    table.rows.iter().for_each(|row| print_row(table, row));
}

fn print_row(table: &RegisterTable, row: &Row<String>) {
    let has = |number: &usize| row.members.has_number(*number);
    let numbers: Vec<_> = (0..table.chips.len()).filter(has).collect();
    let chips: Vec<_> = match numbers.len() == table.chips.len() {
        true => vec!["all"],
        false => numbers.iter().map(|number| table.chips[*number]).collect(),
    };
    let mut resets: Vec<_> = numbers.iter().map(|number| hex(row.reset[*number])).collect();
    resets.dedup();
    println!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        place(table, row),
        row.name,
        chips.join(", "),
        access(row.access),
        hex(row.mask),
        resets.join(", "),
        row.effect,
        if row.survives == 0 { String::new() } else { hex(row.survives) },
        shared(row.shared),
    );
}

fn place(table: &RegisterTable, row: &Row<String>) -> String {
    let last = row.at + table.step * u32::from(row.count - 1);
    match (table.step, row.count) {
        (1, _) => row.at.to_string(),
        (_, 1) => format!("{:04X}", row.at),
        _ => format!("{:04X} to {last:04X}", row.at),
    }
}

fn hex(value: u32) -> String {
    if value == 0 { "0".to_owned() } else { format!("{value:X}") }
}

fn access(access: Access) -> &'static str {
    match access {
        Access::ReadWrite => "rw",
        Access::Halted => "halted",
        Access::ReadOnly => "ro",
        Access::ReadClear => "rc",
        Access::WriteOnly => "wo",
    }
}

fn shared(shared: Option<PageUse>) -> &'static str {
    match shared {
        None => "",
        Some(PageUse::Setup) => "set-up",
        Some(PageUse::Last) => "set-up, last",
        Some(PageUse::Head) => "head",
        Some(PageUse::Tail) => "doorbell",
    }
}
