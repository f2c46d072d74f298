/** Attention whose heads are cut over the ranks, and what tells it positions. */
package io.djltp.nn.attention;
