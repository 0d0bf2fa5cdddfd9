-- What wrk sends, and whether every answer is the one expected.
-- After `--`: the file of the request's body, the file of the answer's, the request id, the body's type, how long the
-- JSON in it is (0: the whole of it, and the header that says so is left out), and how many requests leave at once.

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

local function whole(name)
  local file = assert(io.open(name, "rb"))
  local data = file:read("*a")
  file:close()
  return data
end

function init(args)
  wrk.method = "POST"
  wrk.body = whole(args[1])
  expected = whole(args[2])
  wrk.headers["x-request-id"] = args[3]
  wrk.headers["Content-Type"] = args[4]
  if tonumber(args[5]) > 0 then
    wrk.headers["Inference-Header-Content-Length"] = args[5]
  end
  answered, wrong, example = 0, 0, ""
  message = string.rep(wrk.format(), tonumber(args[6]))
end

function request()
  return message
end

function response(status, headers, body)
  answered = answered + 1
  if status ~= 200 or body ~= expected then
    wrong = wrong + 1
    example = status .. " " .. body:sub(1, 200)
  end
end

function done(summary, latency, requests)
  local answers, wrongs, one = 0, 0, ""
  for _, thread in ipairs(threads) do
    answers = answers + thread:get("answered")
    wrongs = wrongs + thread:get("wrong")
    if thread:get("example") ~= "" then
      one = thread:get("example")
    end
  end
  local errors = summary.errors
  print(string.format("sums %d %d %d %d %d %d %d %d", summary.requests, errors.connect, errors.read, errors.write,
    errors.status, errors.timeout, answers, wrongs))
  if one ~= "" then
    print("wrong: " .. one)
  end
end
