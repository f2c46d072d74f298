/** Attention whose heads are cut over the ranks, and what tells it positions. */
@NullMarked
package io.djltp.nn.attention;

import org.jspecify.annotations.NullMarked;
