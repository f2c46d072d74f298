/** Contains {@code tp train}: the training of the lemmatiser. */
@NullMarked
package io.djltp.examples.train;

import org.jspecify.annotations.NullMarked;
