/** A language model that is trained from scratch, cut over the ranks. */
package io.djltp.examples.lm;
