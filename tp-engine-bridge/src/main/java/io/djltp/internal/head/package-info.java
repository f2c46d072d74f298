/** Contains the softmax head that computes its logits a chunk at a time. */
package io.djltp.internal.head;
