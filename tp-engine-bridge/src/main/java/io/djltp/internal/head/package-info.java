/** Contains the softmax head that computes its logits a chunk at a time. */
@NullMarked
package io.djltp.internal.head;

import org.jspecify.annotations.NullMarked;
