/** Contains how the arrays of a forward pass lie over the ranks. */
package io.djltp.layout;
