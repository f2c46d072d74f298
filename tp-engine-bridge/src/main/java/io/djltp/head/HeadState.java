package io.djltp.head;

/**
 * What the next pass of a {@link FusedSoftmaxHead} depends on beside its inputs, in the last bits
 * too.
 *
 * @param steps the number of updates, by which classes are drawn
 * @param guarded whether logits of this rank have been too large for exponentials of them as they
 *     are, and are expected to be
 * @param rows the rows that the chunks of training steps are planned for, those of the largest
 *     batch so far, or 0: sums are rounded as chunks are long
 * @param evaluationRows the same of evaluations
 */
public record HeadState(long steps, boolean guarded, long rows, long evaluationRows) {}
