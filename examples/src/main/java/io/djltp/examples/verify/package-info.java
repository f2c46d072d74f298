/** Contains {@code tp verify}: parallel layers beside the layers that they are cut from. */
package io.djltp.examples.verify;
