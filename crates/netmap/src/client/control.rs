//! `NIOCCTRL`: copies a request of the new interface in, has it answered, and copies the result
//! out.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::UserMemory;
use super::options::{List, Local, Refused};
use crate::abi::{Header, NAME, VERSIONS, reqtype};
use crate::wire::{Answer, Ask, kind};

/// A request, with the parts that only the library needs.
#[derive(Debug)]
pub struct Question {
    /// The part that the daemon answers.
    pub ask: Ask,
    /// The part that the library itself needs.
    pub local: Local,
}

/// Carries out the request at `at`. `ask` answers it.
///
/// # Errors
/// The error number for the program.
pub fn control(
    user: &dyn UserMemory,
    at: u64,
    ask: impl FnMut(&mut Question) -> Result<Answer, Errno>,
) -> Result<(), Errno> {
    if at == 0 {
        return Err(Errno::INVAL);
    }
    let mut bytes = [0; size_of::<Header>()];
    user.read(at, &mut bytes)?;
    let mut header = Header::read_from_bytes(&bytes).map_err(|_| Errno::INVAL)?;
    let done = request(user, &mut header, ask);
    // The header is written back on success and on failure.
    user.write(at, header.as_bytes())?;
    done
}

fn request(
    user: &dyn UserMemory,
    header: &mut Header,
    ask: impl FnMut(&mut Question) -> Result<Answer, Errno>,
) -> Result<(), Errno> {
    if !VERSIONS.contains(&header.version) || header.reserved != 0 {
        return Err(Errno::INVAL);
    }
    header.name[NAME - 1] = 0;
    let body = reqtype::body_size(header.reqtype).unwrap_or(0);
    if (body > 0) != (header.body != 0) {
        return Err(Errno::INVAL);
    }
    let mut question = Ask::new(kind::CONTROL, header.reqtype);
    question.name = header.name;
    user.read(header.body, &mut question.body[..body])
        .or_else(|error| if body == 0 { Ok(()) } else { Err(error) })?;
    let mut list = match List::read(user, header.options, body as u64) {
        Ok(list) => list,
        Err(Refused { errno, list }) => {
            if let Some(list) = list {
                list.write_back(user)?;
            }
            return Err(errno);
        }
    };
    if reqtype::body_size(header.reqtype).is_none() {
        list.write_back(user)?;
        return Err(Errno::INVAL);
    }
    question.options = list.options;
    let mut question = Question { ask: question, local: std::mem::take(&mut list.local) };
    finish(user, header, &mut question, body, &mut list, ask)
}

/// Sends the question, and writes the answer back to the program.
fn finish(
    user: &dyn UserMemory,
    header: &mut Header,
    question: &mut Question,
    body: usize,
    list: &mut List,
    mut ask: impl FnMut(&mut Question) -> Result<Answer, Errno>,
) -> Result<(), Errno> {
    let answer = ask(question);
    if let Ok(answer) = &answer {
        list.answer(&answer.options);
    }
    list.write_back(user)?;
    let answer = answer?;
    if answer.status != 0 {
        return Err(Errno::from_raw_os_error(answer.status));
    }
    list.write_bodies(user)?;
    header.name = answer.name;
    user.write(header.body, &answer.body[..body])
        .or_else(|error| if body == 0 { Ok(()) } else { Err(error) })
}
