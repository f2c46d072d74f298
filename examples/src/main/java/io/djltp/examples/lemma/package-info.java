/**
 * The data of a lemmatiser with one class per lemma: inflected word forms and their dictionary
 * forms, of real dictionaries from Maven Central.
 *
 * <p>{@link io.djltp.examples.lemma.LemmaCorpus} reads the dictionaries, {@link
 * io.djltp.examples.lemma.HeldOutSplit} keeps some forms away from training and writes both.
 */
@NullMarked
package io.djltp.examples.lemma;

import org.jspecify.annotations.NullMarked;
