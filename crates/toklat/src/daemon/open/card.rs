//! Network cards that toklat's own drivers drive.

use ::card::{Model, vfio};
use dataplane::config::Attachment;
use topology::Card;

use super::super::cards;
use super::super::front_ends::Waiting;
use super::{Following, Future, Open, Opened, Opening, Reach};
use crate::api::{ApiError, ErrorCode};

/// The port is vacant until the process that drives the card has opened it.
impl Open for Card {
    fn reach(&self) -> Reach<'_> {
        Reach::Host("it takes a network card")
    }

    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        Box::pin(async move { self.probe(at.mtu).await.map(|()| Opened::vacant()) })
    }

    fn probe(&self, mtu: u16) -> Future<'_, ()> {
        let missing = |error: vfio::PlaceError| {
            let (reason, remedy) = error.advice();
            ApiError::new(ErrorCode::BadRequest, reason, remedy)
        };
        let there = vfio::check(&self.address).map_err(missing);
        let checked = there.and_then(|()| check_mtu(&self.address, mtu));
        Box::pin(std::future::ready(checked))
    }

    fn is_opened_for_mtu(&self) -> bool {
        true
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Ring(_) | Attachment::Vacant)
    }

    fn follow(
        &self,
        name: (String, String),
        Following { attachment, start, mtu, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        // The process of an earlier supervisor may have it.
        let occupied = matches!(attachment, Attachment::Ring(_));
        Ok(Some(cards::keep(name, (&self.address, mtu), start, occupied)))
    }
}

/// Checks that a card carries packets of `mtu` bytes. What has no driver is told by the process.
fn check_mtu(address: &str, mtu: u16) -> Result<(), ApiError> {
    let Some(model) = Model::at(address).ok().filter(|model| model.mtu() < mtu) else {
        return Ok(());
    };
    let (name, most) = (model.name, model.mtu());
    let reason = format!("Card {address} ({name}) carries packets of {most} bytes, not of {mtu}");
    let remedy = format!("--mtu {most}, or less");
    Err(ApiError::new(ErrorCode::BadRequest, reason, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_card_that_does_not_exist_is_named() {
        let card = Card { address: "fffff:ff:1f.7".into() };
        let missing = card.open(Opening::of_test()).await.unwrap_err();
        assert_eq!(missing.code, ErrorCode::BadRequest, "{missing}");
        assert!(missing.reason.contains("fffff:ff:1f.7"), "{missing}");
        assert!(missing.remedy.contains("lspci"), "{missing}");
    }
}
