/** Sentence embeddings by a pretrained transformer that is cut over the ranks. */
package io.djltp.examples.embed;
