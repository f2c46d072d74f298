/**
 * Language models: Hugging Face folders as networks over ranks.
 *
 * <p>Each decoder is computed in two ways, which tests hold against the same numbers: {@code
 * DecoderNetwork} is a block for training and prediction, {@code RankDecoder} generates with a
 * cache. An encoder has {@code EncoderNetwork} and {@code RankEncoder}. Both ways read sizes from
 * {@link io.djltp.llm.ModelConfig}, and find tensors by the table of the family, such as {@code
 * llama.names}.
 */
@NullMarked
package io.djltp.llm;

import org.jspecify.annotations.NullMarked;
