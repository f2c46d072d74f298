/** Contains arrays of a forward pass that carry their placement over the ranks. */
package io.djltp.internal.layout;
