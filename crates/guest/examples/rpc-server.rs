//! Answers RPC requests with their own bytes; those that begin with `W` on another thread.
//!
//!     cargo run --release -p toklat-guest --example rpc-server vale0:calls

use std::cell::RefCell;
use std::error::Error;
use std::time::{Duration, Instant};

use frame::Mac;
use guest::rpc::{Answer, Call, Config, Serving, bay};
use guest::{Bytes, Nanos, RingNic};
use netring::Open;

/// How long the server polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: rpc-server SWITCH:PORT")?;
    let mac = Mac::of_name(&name);
    let nic = RingNic::new(Open::new(&name).open()?);
    let (workers, worker) = bay(64);
    std::thread::spawn(move || worker.run(|_, request| Bytes::copy_from_slice(request)));
    let workers = RefCell::new(workers);
    let handler = |call: Call, request: &[u8], reply: &mut [u8]| {
        if request.first() == Some(&b'W') {
            let is_taken = workers.borrow_mut().post(call, request);
            return if is_taken { Answer::Later } else { Answer::Busy };
        }
        match reply.get_mut(..request.len()) {
            Some(place) => {
                place.copy_from_slice(request);
                Answer::Here(request.len())
            }
            None => Answer::Whole(Bytes::copy_from_slice(request)),
        }
    };
    let config = Config { checksum: false, ..Config::new(mac) };
    let mut serving = Serving::new(nic, config, handler);
    println!("{mac}");
    let (started, mut last) = (Instant::now(), Instant::now());
    loop {
        let now = Nanos(Nanos::SECOND) + started.elapsed().as_nanos() as u64;
        let is_busy = serving.poll(now)? > 0 || workers.borrow().outstanding() > 0;
        serving.collect(&mut workers.borrow_mut())?;
        if is_busy {
            last = Instant::now();
        } else if last.elapsed() > SPIN {
            serving.wait(None)?;
        }
    }
}
