/** Contains the precision of products, and the allocator of the process. */
package io.djltp.torch;
