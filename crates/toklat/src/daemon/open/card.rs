//! Network cards that toklat's own drivers drive.

use ::card::vfio;
use dataplane::config::Attachment;
use topology::Card;

use super::super::cards;
use super::super::front_ends::Waiting;
use super::{Following, Future, Open, Opened, Opening};
use crate::api::{ApiError, ErrorCode};

/// The port is vacant until the process that drives the card has opened it.
impl Open for Card {
    fn open<'a>(&'a self, _: Opening<'a>) -> Future<'a, Opened> {
        let there = vfio::check(&self.address).map(|()| Opened::vacant());
        let missing = |error: vfio::PlaceError| {
            let (reason, remedy) = error.advice();
            ApiError::new(ErrorCode::BadRequest, reason, remedy)
        };
        Box::pin(std::future::ready(there.map_err(missing)))
    }

    fn is(&self, attachment: &Attachment) -> bool {
        matches!(attachment, Attachment::Ring(_) | Attachment::Vacant)
    }

    fn follow(
        &self,
        name: (String, String),
        Following { attachment, start, .. }: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        // The process of an earlier supervisor may have it.
        let occupied = matches!(attachment, Attachment::Ring(_));
        Ok(Some(cards::keep(name, &self.address, start, occupied)))
    }
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
