//! Whether a real tokenizer makes short texts long.
//!
//! A `tokenizer.json` can replace what it has just put in, step after step, so that a few lines of
//! it make gigabytes of one letter. Not a proof that a tokenizer does not: samples are taken
//! through it one step at a time, and looked at after each. The invariant: what a sample has grown
//! to is bounded before the next step sees it, so that this check ends for every file.

use tokenizers::{
    Decoder as _, DecoderWrapper, NormalizedString, Normalizer as _, NormalizerWrapper,
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
    Tokenizer,
};

use super::model_tokenizer::guarded;

/// A text may become so many times as long, in bytes. Of real ones, those that write a space as `▁`
/// come to three, and those that write each byte as a letter to two.
const MOST_GROWTH: usize = 16;
/// And so many bytes longer, however short it is.
const MOST_ADDED: usize = 1024;
/// The longest text that is put in place of another. Real ones put in a few letters.
const LONGEST_REPLACEMENT: usize = 256;
/// The most steps of a part. Real ones have up to ten.
const MOST_STEPS: usize = 128;

/// A letter alone may be added to; of so many it shows what becomes of each.
const REPEATED: usize = 64;
const BEYOND_ASCII: [&str; 10] = ["\n", "\t", "é", "ß", "ü", "你", "▁", "Ġ", "\u{fffd}", "😀"];

/// Takes samples through the parts of a tokenizer that change texts.
///
/// # Errors
/// Which part makes too much of one.
pub(super) fn check(tokenizer: &Tokenizer) -> Result<(), String> {
    let (mut normalizers, mut cutters, mut decoders) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(normalizer) = tokenizer.get_normalizer() {
        flatten_normalizer(normalizer, &mut normalizers);
    }
    if let Some(cutter) = tokenizer.get_pre_tokenizer() {
        flatten_cutter(cutter, &mut cutters);
    }
    if let Some(decoder) = tokenizer.get_decoder() {
        flatten_decoder(decoder, &mut decoders);
    }
    let mut samples: Vec<String> = (b' '..=b'~')
        .map(|byte| char::from(byte).to_string())
        .chain(BEYOND_ASCII.map(str::to_owned))
        .map(|letter| letter.repeat(REPEATED))
        .collect();
    for (part, steps) in [
        ("normalizer", normalizers.len()),
        ("pre_tokenizer", cutters.len()),
        ("decoder", decoders.len()),
    ] {
        if steps > MOST_STEPS {
            return Err(format!("its {part} has {steps} steps; the most are {MOST_STEPS}"));
        }
    }
    let put_in = normalizers.iter().filter_map(|step| match step {
        NormalizerWrapper::Replace(replace) => Some(("normalizer", &replace.content)),
        NormalizerWrapper::Prepend(prepend) => Some(("normalizer", &prepend.prepend)),
        _ => None,
    });
    let put_back = decoders.iter().filter_map(|step| match step {
        DecoderWrapper::Replace(replace) => Some(("decoder", &replace.content)),
        _ => None,
    });
    for (part, text) in put_in.chain(put_back) {
        if text.len() > LONGEST_REPLACEMENT {
            let bytes = text.len();
            return Err(format!(
                "its {part} puts in a text of {bytes} bytes; the most are {LONGEST_REPLACEMENT}"
            ));
        }
        samples.push(text.clone());
    }
    samples.iter().try_for_each(|sample| {
        // A step that fails or panics is told by whoever makes tokens of a text.
        guarded(|| cut(sample, &normalizers, &cutters)).unwrap_or(Ok(()))?;
        guarded(|| join(sample, &decoders)).unwrap_or(Ok(()))
    })
}

fn cut(
    sample: &str,
    normalizers: &[&NormalizerWrapper],
    cutters: &[&PreTokenizerWrapper],
) -> Result<(), String> {
    let mut text = NormalizedString::from(sample);
    for step in normalizers {
        if step.normalize(&mut text).is_err() {
            return Ok(());
        }
        bounded("normalizer", sample, text.get().len())?;
    }
    let mut pieces = PreTokenizedString::from(text);
    for step in cutters {
        if step.pre_tokenize(&mut pieces).is_err() {
            return Ok(());
        }
        let all = pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        bounded("pre_tokenizer", sample, all.iter().map(|(piece, ..)| piece.len()).sum())?;
    }
    Ok(())
}

fn join(sample: &str, decoders: &[&DecoderWrapper]) -> Result<(), String> {
    let mut texts = vec![sample.to_owned()];
    for step in decoders {
        let Ok(joined) = step.decode_chain(texts) else { return Ok(()) };
        texts = joined;
        bounded("decoder", sample, texts.iter().map(String::len).sum())?;
    }
    Ok(())
}

fn bounded(part: &str, sample: &str, len: usize) -> Result<(), String> {
    if len <= MOST_GROWTH * sample.len() + MOST_ADDED {
        return Ok(());
    }
    let first: String = sample.chars().take(20).collect();
    Err(format!(
        "its {part} makes {len} bytes of the {} of {first:?}...: a text may become {MOST_GROWTH} times \
         as long, and no longer",
        sample.len()
    ))
}

fn flatten_normalizer<'a>(of: &'a NormalizerWrapper, steps: &mut Vec<&'a NormalizerWrapper>) {
    match of {
        NormalizerWrapper::Sequence(all) => {
            all.as_ref().iter().for_each(|step| flatten_normalizer(step, steps));
        }
        step => steps.push(step),
    }
}

fn flatten_cutter<'a>(of: &'a PreTokenizerWrapper, steps: &mut Vec<&'a PreTokenizerWrapper>) {
    match of {
        PreTokenizerWrapper::Sequence(all) => {
            all.as_ref().iter().for_each(|step| flatten_cutter(step, steps));
        }
        step => steps.push(step),
    }
}

fn flatten_decoder<'a>(of: &'a DecoderWrapper, steps: &mut Vec<&'a DecoderWrapper>) {
    match of {
        DecoderWrapper::Sequence(all) => {
            all.get_decoders().iter().for_each(|step| flatten_decoder(step, steps));
        }
        step => steps.push(step),
    }
}
