/** A language model that is trained from scratch, cut over the ranks. */
@NullMarked
package io.djltp.examples.lm;

import org.jspecify.annotations.NullMarked;
