/**
 * A lemmatiser with one class per lemma: inflected word forms in, dictionary forms out, trained on
 * real dictionaries from Maven Central.
 *
 * <p>{@link io.djltp.examples.lemma.LemmaCorpus} reads the dictionaries, {@link
 * io.djltp.examples.lemma.HeldOutSplit} keeps some forms away from training, {@link
 * io.djltp.examples.lemma.LemmaDataset} turns the rest into batches and {@link
 * io.djltp.zoo.LemmaNetwork} is the network under any head.
 */
@NullMarked
package io.djltp.examples.lemma;

import org.jspecify.annotations.NullMarked;
