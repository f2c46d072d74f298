/** Sentence embeddings by a pretrained transformer that is cut over the ranks. */
@NullMarked
package io.djltp.examples.embed;

import org.jspecify.annotations.NullMarked;
