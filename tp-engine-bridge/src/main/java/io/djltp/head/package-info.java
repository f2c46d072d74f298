/** Contains the fused softmax head: logits, loss and update in chunks of the classes. */
package io.djltp.head;
